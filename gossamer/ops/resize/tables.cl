/* Resizing of a tensor seen as (outer, height, width, inner), inner contiguous: NCHW is
 * (N C, H, W, 1), NHWC is (N, H, W, C), CHWN is (C, H, W, N). Tables hold, for each output row
 * and column, the input places it takes, and with LINEAR the part of the second one.
 *
 * VECTOR: neighbours along `inner` a work-item, 1 or 4; 4 needs inner % 4 == 0. */

#define MIX(a, b, part) ((a) + ((b) - (a)) * (part))
#define MIX_FOUR(lane) MIX(MIX(aa.lane, ab.lane, px), MIX(ba.lane, bb.lane, px), py)

#if VECTOR == 4
#define VALUES float4
#define TAKE(pointer) LOAD4(pointer)
#define PUT(pointer, value) STORE4(pointer, value)
#else
#define VALUES float
#define TAKE(pointer) (*(pointer))
#define PUT(pointer, value) (*(pointer) = (value))
#endif

KERNEL void resize(const GLOBAL float *RESTRICT source, GLOBAL float *RESTRICT target,
                   const GLOBAL int *RESTRICT rows, const GLOBAL int *RESTRICT columns,
#ifdef LINEAR
                   const GLOBAL int *RESTRICT next_rows, const GLOBAL int *RESTRICT next_columns,
                   const GLOBAL float *RESTRICT row_parts,
                   const GLOBAL float *RESTRICT column_parts,
#endif
                   int count, int height, int width, int inner, int out_height, int out_width)
{
    uint rest = (uint)GROUP_ID(0) * (uint)LOCAL_SIZE(0) + (uint)LOCAL_ID(0);
    if (rest < (uint)count) {
        GLOBAL float *result = target + (size_t)rest * VECTOR;
        int i = (int)(rest % (uint)(inner / VECTOR)) * VECTOR;
        rest /= (uint)(inner / VECTOR);
        int x = (int)(rest % (uint)out_width);
        rest /= (uint)out_width;
        int y = (int)(rest % (uint)out_height);
        const GLOBAL float *plane = source
            + (size_t)(rest / (uint)out_height) * (size_t)(height * width * inner) + i;
        const GLOBAL float *row = plane + rows[y] * width * inner;
        VALUES aa = TAKE(row + columns[x] * inner);
#ifdef LINEAR
        const GLOBAL float *next = plane + next_rows[y] * width * inner;
        VALUES ab = TAKE(row + next_columns[x] * inner);
        VALUES ba = TAKE(next + columns[x] * inner);
        VALUES bb = TAKE(next + next_columns[x] * inner);
        float px = column_parts[x], py = row_parts[y];
#if VECTOR == 4
        aa = MAKE4(MIX_FOUR(x), MIX_FOUR(y), MIX_FOUR(z), MIX_FOUR(w));
#else
        aa = MIX(MIX(aa, ab, px), MIX(ba, bb, px), py);
#endif
#endif
        PUT(result, aa);
    }
}
