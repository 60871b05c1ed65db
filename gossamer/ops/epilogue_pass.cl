/* Rewrites a finished result by its epilogue. In memory the result is (outer, channels, inner).
 * HALVES    the result and the tensor operands are 16-bit floats
 * VECTOR    consecutive elements of a work-item: 1 or 4; a float32 result must be aligned to 16
 *           bytes then, one of halves to 8 */

#if HALVES
#define ELEMENT HALF
#define READ(index) LOAD_HALF(y, index)
#define WRITE(index, value) STORE_HALF(y, index, value)
#define READ4(index) LOAD_HALF4(y, index)
#define WRITE4(index, value) STORE_HALF4(y, index, value)
#else
#define ELEMENT float
#define READ(index) y[index]
#define WRITE(index, value) y[index] = value
#define READ4(index) LOAD4(y + (index))
#define WRITE4(index, value) STORE4(y + (index), value)
#endif

#if HALVES && VECTOR == 4
#ifdef __OPENCL_VERSION__
#define LOAD_HALF4(pointer, index) vload_half4((size_t)(index) / 4, pointer)
#define STORE_HALF4(pointer, index, value) vstore_half4_rte(value, (size_t)(index) / 4, pointer)
#else
#define LOAD_HALF4(pointer, index) halves_to_floats(*(const ushort4 *)((pointer) + (index)))
#define STORE_HALF4(pointer, index, value) \
    (*(ushort4 *)((pointer) + (index)) = floats_to_halves(value))

INLINE float4 halves_to_floats(ushort4 bits)
{
    return MAKE4(half_to_float(bits.x), half_to_float(bits.y), half_to_float(bits.z),
                 half_to_float(bits.w));
}

INLINE ushort4 floats_to_halves(float4 value)
{
    return make_ushort4(float_to_half(value.x), float_to_half(value.y), float_to_half(value.z),
                        float_to_half(value.w));
}
#endif
#endif

KERNEL void epilogue_pass(GLOBAL ELEMENT *RESTRICT y, int items, DIVISOR(inner),
                          DIVISOR(channels) EPILOGUE_PARAMETERS)
{
    int item = GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0);
    if (item < items) {
        int index = item * VECTOR;
        int plane = (int)QUOTIENT(index, inner);
        int channel = plane - (int)QUOTIENT(plane, channels) * channels;
#if VECTOR == 4
        float4 value = READ4(index);
        EPILOGUE4(value, channel, index)
        WRITE4(index, value);
#else
        float value = READ(index);
        EPILOGUE(value, channel, index)
        WRITE(index, value);
#endif
    }
}
