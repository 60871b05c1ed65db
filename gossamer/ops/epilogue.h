/* The epilogue of a kernel: arithmetic on each result before it is stored. epilogue.py, beside this
 * file, generates these macros. The definitions below leave results unchanged.
 *
 * `channel` is the result's channel. `index` is the offset in elements at which the macros read
 * every tensor operand for this result. */

#pragma once

#include "dialect/common.h"

#if !defined CONFIGURED && !defined EPILOGUE_PARAMETERS
#define EPILOGUE_PARAMETERS /* the operands, at the end of the parameter list */
#define EPILOGUE_ARGUMENTS /* the operands, at the end of the arguments of a function */
#define EPILOGUE(value, channel, index) /* rewrites a float */
#define EPILOGUE4(value, channel, index) /* rewrites a float4 of four neighbours in memory */
#define EPILOGUE8(lower, upper, channel, index) /* rewrites two float4 of eight neighbours */
/* rewrites a float and sets `second` to the expression's second output */
#define EPILOGUE2(value, second, channel, index) second = value;
/* rewrites a float4 of four neighbours and sets `second` to the expression's second outputs */
#define EPILOGUE2_4(value, second, channel, index) second = value;
/* rewrites two float4 of eight neighbours and sets second_lower and second_upper to the
 * expression's second outputs */
#define EPILOGUE2_8(lower, upper, second_lower, second_upper, channel, index) \
    second_lower = lower;                                                     \
    second_upper = upper;
#endif
