/* The epilogue of a kernel: what it makes of each result before it stores it. epilogue.py, beside this
 * file, writes these macros; without them results are stored as they are.
 *
 * `channel` is the result's channel, and `index` its place in the epilogue's tensor operands. */

#pragma once

#include "dialect/common.h"

#if !defined CONFIGURED && !defined EPILOGUE_PARAMETERS
#define EPILOGUE_PARAMETERS /* the operands, at the end of the parameter list */
#define EPILOGUE_ARGUMENTS /* the operands, at the end of the arguments of a function */
#define EPILOGUE(value, channel, index) /* rewrites a float */
#define EPILOGUE4(value, channel, index) /* rewrites a float4 of four neighbours in memory */
#define EPILOGUE8(lower, upper, channel, index) /* rewrites two float4 of eight neighbours */
/* rewrites a float and sets a second one */
#define EPILOGUE2(value, second, channel, index) second = value;
/* the same of four neighbours */
#define EPILOGUE2_4(value, second, channel, index) second = value;
/* the same of eight neighbours */
#define EPILOGUE2_8(lower, upper, second_lower, second_upper, channel, index) \
    second_lower = lower;                                                     \
    second_upper = upper;
#endif
