/* Halos for bits_wgmma.cu. A halo is the input pixels under the windows of a tile of output pixels.
 * A halo is copied once for all taps.
 *
 * Input pixels are numbered through the rows and through the images. The halo has HALO_PIXELS
 * consecutive pixels, beginning with the first pixel of the tile's first window. For each word of a
 * pixel, the halo has an array of this word of all pixels. HALO_LINE is the size of such an array
 * in bytes, including padding. Because of the padding, the next array begins 8 banks further on. At
 * the position of a tap outside of the image, the halo has a pixel of another row or image. The
 * operand of this tap is therefore loaded from zeros in shared memory instead of the halo. */

#pragma once

#if !defined CONFIGURED && !defined HALO
#define HALO 1 /* 1: inputs are copied by halos */
#endif
#if !defined CONFIGURED && !defined HALO_PIXELS
#define HALO_PIXELS 50 /* pixels of a halo */
#define KERNEL_H 3 /* rows of the window */
#define KERNEL_W 3 /* columns of the window; windows have at most 31 taps */
#define DILATION_Y 1 /* rows from a tap to the next */
#define DILATION_X 1 /* columns from a tap to the next */
#endif

#include "bits.h"

#if HALO
#define HALO_LINE (CEIL_DIV(HALO_PIXELS * PLACE_BYTES, 128) * 128 + 32)

/* Returns a bit for each tap of a window: 1 if the tap is inside of the image, else 0. */
INLINE uint taps_inside(const Source &source, const Window &window)
{
    uint columns = 0, inside = 0;
    UNROLL for (int s = 0; s < KERNEL_W; s++)
        columns |= (uint)((uint)(window.column + s * DILATION_X) < (uint)source.width) << s;
    UNROLL for (int r = 0; r < KERNEL_H; r++)
        inside |= ((uint)(window.row + r * DILATION_Y) < (uint)source.height ? columns : 0)
                  << r * KERNEL_W;
    return inside;
}

/* Returns the number of the first pixel of a window among the pixels of all images. */
INLINE int corner_of(const Source &source, const Position &position, const Window &window)
{
    return (position.image * source.height + window.row) * source.width + window.column;
}

/* Starts a work-item's copies of a halo: the copies of pixels `first`, `first + step` and so on.
 *
 * position: the position of the tile's first output pixel; the halo has no pixels of earlier
 * images. images: number of images. */
INLINE void copy_halo(uint target, const Source &source, const Position &position, int group_words,
                      int images, int first, int step)
{
    int plane = source.height * source.width;
    Window window = window_of(source, position);
    int corner = window.row * source.width + window.column;
    for (int number = first; number < HALO_PIXELS; number += step) {
        int pixel = corner + number, image = position.image;
        for (; pixel >= plane; pixel -= plane)
            image++;
        if (pixel < 0 || image >= images)
            continue;
        int word = (image * source.words + source.first_word) * plane + pixel;
        const uchar *from = source.x + (INT64)word * PLACE_BYTES;
        uint place = target + number * PLACE_BYTES;
        for (int line = 0; line < group_words; line++)
            copy_word(place + line * HALO_LINE, from + (INT64)line * plane * PLACE_BYTES,
                      PLACE_BYTES);
    }
}

/* The window of a lane's pixel.
 *
 * start: bytes of the halo before the window.
 * inside: a bit for each tap, 1 if the tap is inside of the image. */
struct OwnWindow {
    int start;
    uint inside;
};

/* Loads this lane's bits of one step (256 bits of a pixel's inner product). The result is zeros if
 * the tap of these bits is outside of the image.
 *
 * place.x: bytes from the window's first word to the lane's word.
 * place.y: number of the word's tap. */
INLINE Operand load_from_halo(const uchar *halo, const OwnWindow &window, const int2 &place,
                              const void *zeros)
{
    bool is_inside = window.inside >> place.y & 1;
    return load_operand(is_inside ? halo + window.start + place.x : (const uchar *)zeros, 0);
}
#endif
