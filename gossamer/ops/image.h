/* Macros with which the kernels of a network's first layers load an image, or compute the image
 * from another tensor, such as a tensor of bytes. */

#pragma once

#if !defined CONFIGURED && !defined IMAGE_TYPE
#define IMAGE_TYPE float /* type of the elements in memory */
#define IMAGE_HALVES 0 /* 1: the elements are 16-bit floats */
#define IMAGE_BFLOATS 0 /* 1: the elements are the upper halves of floats (bfloat16) */
#define IMAGE_NHWC 0 /* 1: the elements are in NHWC; 0: in NCHW */
#define IMAGE_CHANNELS 3 /* channels of the image */
#define GIVEN_EPILOGUE_PARAMETERS /* parameters of a kernel: the operands of GIVEN_EPILOGUE */
#define GIVEN_OPERANDS /* the operands of GIVEN_EPILOGUE as arguments of a function call */
#define GIVEN_EPILOGUE(value, channel, index) /* computes a number of the image from an element */
#endif

#include "dialect/common.h"

#if IMAGE_HALVES
#define IMAGE_ELEMENT(image, place) LOAD_HALF(image, place)
#elif IMAGE_BFLOATS
#define IMAGE_ELEMENT(image, place) BITS_AS_FLOAT((uint)(image)[place] << 16)
#else
#define IMAGE_ELEMENT(image, place) (float)(image)[place]
#endif
/* distances in elements from one column to the next, and from one channel to the next; plane: the
 * number of elements of a channel in NCHW */
#define IMAGE_COLUMN (IMAGE_NHWC ? IMAGE_CHANNELS : 1)
#define IMAGE_CHANNEL(plane) (IMAGE_NHWC ? 1 : (plane))
/* Sets a variable to the image's number at the offset `place`, or to 0 if `exists` is false. The
 * arithmetic is not in a branch, so that a kernel can load several elements before it
 * uses the first of them. */
#define LOAD_IMAGE(value, image, place, channel, exists) { \
    value = (exists) ? IMAGE_ELEMENT(image, place) : 0.0f; \
    GIVEN_EPILOGUE(value, channel, 0) \
    value = (exists) ? value : 0.0f; \
}
