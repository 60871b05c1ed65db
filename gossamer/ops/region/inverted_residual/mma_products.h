/* Products of 16 pixels by 8 channels for inverted_residual_mma.cu, the bounds of results, and how
 * they are stored. */

#if PRODUCTS
typedef uint4 Pixels;
struct Weights {
    uint4 tiles;
};

/* Loads a step of 16 rows. first: the first element of the first row. */
INLINE Pixels load_pixels(const REAL *first, int row, int step, uint lane)
{
    uint address = (uint)__cvta_generic_to_shared(
        first + (lane % 16) * row + lane / 16 * WIDTH + step * 2 * WIDTH);
    Pixels found;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
                 : "r"(address) : "memory");
    return found;
}

/* Loads a step's weights for two tiles of channels. */
INLINE Weights load_weights(const uint4 *first, uint lane)
{
    return {first[lane]};
}

INLINE void multiply_tile(float (&sum)[4], const Pixels &pixels, const Weights &weights, int tile)
{
    multiply(sum, pixels, tile ? weights.tiles.z : weights.tiles.x,
             tile ? weights.tiles.w : weights.tiles.y);
}
#else
struct Pixels {
    float4 upper, lower;
};
struct Weights {
    float4 tiles[2][2];
};

INLINE Pixels load_pixels(const REAL *first, int row, int step, uint lane)
{
    const REAL *pixel = first + lane / 4 * row + step * WIDTH;
    return {*(const float4 *)pixel, *(const float4 *)(pixel + 8 * row)};
}

INLINE Weights load_weights(const uint4 *first, uint lane)
{
    const float4 *words = (const float4 *)first + lane % 4 * 2;
    return {{{words[0], words[1]}, {words[8], words[9]}}};
}

INLINE void multiply_tile(float (&sum)[4], const Pixels &pixels, const Weights &weights, int tile)
{
    float4 first = weights.tiles[tile][0], last = weights.tiles[tile][1];
    UNROLL for (int i = 0; i < 2; i++) {
        float4 pixel = i ? pixels.lower : pixels.upper;
        sum[2 * i] = FMA(pixel.x, first.x, sum[2 * i]);
        sum[2 * i + 1] = FMA(pixel.x, first.y, sum[2 * i + 1]);
        sum[2 * i] = FMA(pixel.y, first.z, sum[2 * i]);
        sum[2 * i + 1] = FMA(pixel.y, first.w, sum[2 * i + 1]);
        sum[2 * i] = FMA(pixel.z, last.x, sum[2 * i]);
        sum[2 * i + 1] = FMA(pixel.z, last.y, sum[2 * i + 1]);
        sum[2 * i] = FMA(pixel.w, last.z, sum[2 * i]);
        sum[2 * i + 1] = FMA(pixel.w, last.w, sum[2 * i + 1]);
    }
}
#endif

/* Returns a value as the tensor cores read it: TF32 rounded, where they would truncate it. */
INLINE float rounded(float value)
{
#if TF32
    return __int_as_float(__float_as_int(value) + 0x1000);
#else
    return value;
#endif
}

#if HALVES
/* Returns two values as 16-bit floats, the first in the lower half. */
INLINE uint two_halves(float first, float second)
{
    uint packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
    return packed;
}

/* The larger and the smaller ones of two pairs of 16-bit floats; NaN where one is NaN. */
INLINE uint larger_halves(uint a, uint b)
{
    uint result;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

INLINE uint smaller_halves(uint a, uint b)
{
    uint result;
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}
#endif

/* Stores two neighbours. */
INLINE void store_two(REAL *target, float first, float second)
{
#if HALVES
    *(uint *)target = two_halves(first, second);
#else
    *(float2 *)target = make_float2(first, second);
#endif
}
