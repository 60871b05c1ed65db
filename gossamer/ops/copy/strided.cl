/* Strided copies of up to six dimensions, outermost first. The sizes n, source strides s and target
 * strides t are in elements. `from` and `to` are the offsets in source and target of the element
 * with index 0 along every dimension.
 *
 * With BOUNDED, elements with low <= index < high along every dimension are copied, and `fill` is
 * written to all other elements of the target. The offset `from` may be outside the source, because
 * the element with index 0 may be outside the bounds. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define ELEMENT int /* type of the elements */
#define RANK 4 /* number of dimensions, 2, 4 or 6: the last RANK of the dimensions 0 to 5 */
#define TILE 32 /* rows and columns of a tile, for copy_tiled */
#define FOUR int4 /* type of four elements that are copied at once */
#define CHANNELS 3 /* channels of a pixel, for copy_interleaved */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"

#if defined(INTO_FLOAT16)
#define ELEMENT float
#define FROM float
#define TO HALF
#define AT(offset) source[offset]
#define PUT(offset, value) STORE_HALF(target, offset, value)
#define AT4(offset) LOAD4(source + (offset))
#define PUT4(offset, value) STORE_HALF4(target, offset, value)
#elif defined(INTO_FLOAT32)
#define ELEMENT float
#define FROM HALF
#define TO float
#define AT(offset) LOAD_HALF(source, offset)
#define PUT(offset, value) target[offset] = value
#define AT4(offset) LOAD_HALF4(source, offset)
#define PUT4(offset, value) STORE4(target + (offset), value)
#else
#define FROM ELEMENT
#define TO ELEMENT
#define AT(offset) source[offset]
#define PUT(offset, value) target[offset] = value
#define AT4(offset) (*(const GLOBAL FOUR *)(source + (offset)))
#define PUT4(offset, value) *(GLOBAL FOUR *)(target + (offset)) = value
#endif

#ifdef BOUNDED
#define DIMENSION(d) , DIVISOR(n##d), int s##d, int t##d, int low##d, int high##d
#define ALL_INSIDE int inside = 1;
#define INSIDE(i, d) inside = inside && (i) >= low##d && (i) < high##d;
#define FILL , int fill
#define READ(offset) (inside ? AT(offset) : (ELEMENT)fill)
#else
#define DIMENSION(d) , DIVISOR(n##d), int s##d, int t##d
#define ALL_INSIDE
#define INSIDE(i, d)
#define FILL
#define READ(offset) AT(offset)
#endif

/* Removes the index along dimension d from `rest`, and advances both offsets to this index. */
#define WALK(d) { \
    uint next = QUOTIENT(rest, n##d); \
    int i = (int)(rest - next * (uint)n##d); \
    rest = next; \
    from += i * s##d; \
    to += i * t##d; \
    INSIDE(i, d) \
}

#if RANK > 4
#define OUTER_DIMENSIONS DIMENSION(0) DIMENSION(1) DIMENSION(2) DIMENSION(3)
#define WALK_OUTER WALK(3) WALK(2) WALK(1) WALK(0)
#elif RANK > 2
#define OUTER_DIMENSIONS DIMENSION(2) DIMENSION(3)
#define WALK_OUTER WALK(3) WALK(2)
#else
#define OUTER_DIMENSIONS
#define WALK_OUTER
#endif

#ifndef TILE
/* With FOUR, a work-item copies four elements that are adjacent in both tensors: n5 counts fours. */
KERNEL void copy_strided(const GLOBAL FROM *source, GLOBAL TO *RESTRICT target,
                         int count, int from, int to FILL
                         OUTER_DIMENSIONS DIMENSION(4) DIMENSION(5))
{
    pdl_trigger_and_wait();
    uint rest = (uint)GROUP_ID(0) * (uint)LOCAL_SIZE(0) + (uint)LOCAL_ID(0);
    if (rest < (uint)count) {
        ALL_INSIDE
        WALK(5)
        WALK(4)
        WALK_OUTER
#ifdef FOUR
        PUT4(to, AT4(from));
#else
        PUT(to, READ(from));
#endif
    }
}
#endif

#ifdef CHANNELS
/* A copy of planes into the pixels of an image of few channels. Each work-item copies four pixels,
 * which are adjacent in the source: n4 counts fours of pixels, and dimension 5 has the channels. */
KERNEL void copy_interleaved(const GLOBAL FROM *source, GLOBAL TO *RESTRICT target,
                             int count, int from, int to
                             OUTER_DIMENSIONS DIMENSION(4) DIMENSION(5))
{
    pdl_trigger_and_wait();
    uint rest = (uint)GROUP_ID(0) * (uint)LOCAL_SIZE(0) + (uint)LOCAL_ID(0);
    if (rest < (uint)count) {
        WALK(4)
        WALK_OUTER
        ELEMENT pixels[4 * CHANNELS];
        UNROLL
        for (int channel = 0; channel < CHANNELS; channel++) {
            FOUR plane = AT4(from + channel * s5);
            pixels[channel] = plane.x;
            pixels[CHANNELS + channel] = plane.y;
            pixels[2 * CHANNELS + channel] = plane.z;
            pixels[3 * CHANNELS + channel] = plane.w;
        }
        UNROLL
        for (int k = 0; k < CHANNELS; k++) {
            FOUR part;
            part.x = pixels[4 * k];
            part.y = pixels[4 * k + 1];
            part.z = pixels[4 * k + 2];
            part.w = pixels[4 * k + 3];
            PUT4(to + 4 * k, part);
        }
    }
}
#endif

/* A copy whose dimension 5 is contiguous in the target, and whose dimension 4 is contiguous in the
 * source. A tile of TILE x TILE elements is staged in shared memory, so that both tensors are
 * accessed in full cache lines. */
#ifdef TILE
#define ROWS (256 / TILE)

KERNEL LAUNCH_BOUNDS(256, 2)
void copy_tiled(const GLOBAL FROM *source, GLOBAL TO *RESTRICT target,
                int from, int to FILL
                OUTER_DIMENSIONS DIMENSION(4) DIMENSION(5))
{
    pdl_trigger_and_wait();
    SHARED ELEMENT tile[TILE][TILE + 1];
    uint rest = (uint)GROUP_ID(0);
    uint across = (uint)CEIL_DIV(n5, TILE);
    uint down = (uint)CEIL_DIV(n4, TILE);
    int first5 = (int)(rest % across) * TILE;
    rest /= across;
    int first4 = (int)(rest % down) * TILE;
    rest /= down;
    ALL_INSIDE
    WALK_OUTER
    int x = LOCAL_ID(0) % TILE, y = LOCAL_ID(0) / TILE;
#ifdef BOUNDED
    int whole = inside;
#endif
    UNROLL
    for (int k = 0; k < TILE; k += ROWS) {
        int j = k + y, i4 = first4 + x, i5 = first5 + j;
        if (i4 < n4 && i5 < n5) {
#ifdef BOUNDED
            inside = whole;
#endif
            INSIDE(i4, 4)
            INSIDE(i5, 5)
            tile[j][x] = READ(from + i4 * s4 + i5 * s5);
        }
    }
    BARRIER();
    UNROLL
    for (int k = 0; k < TILE; k += ROWS) {
        int j = k + y, i4 = first4 + j, i5 = first5 + x;
        if (i4 < n4 && i5 < n5)
            PUT(to + i4 * t4 + i5 * t5, tile[x][j]);
    }
}
#endif
