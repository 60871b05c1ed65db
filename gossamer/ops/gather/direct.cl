/* output[outer, i, inner] = data[outer, indices[i], inner]. ELEMENT: the type that is moved;
 * INDEX: the type of the indices. */

#ifdef __OPENCL_VERSION__
#define INT64 long
#else
#define INT64 long long
#endif

KERNEL void gather(const GLOBAL ELEMENT *RESTRICT data, const GLOBAL INDEX *RESTRICT indices,
                   GLOBAL ELEMENT *RESTRICT target, int count, int length, int taken, int inner)
{
    uint index = (uint)GROUP_ID(0) * (uint)LOCAL_SIZE(0) + (uint)LOCAL_ID(0);
    if (index < (uint)count) {
        uint rest = index;
        int i = (int)(rest % (uint)inner);
        rest /= (uint)inner;
        INDEX place = indices[rest % (uint)taken];
        int outer = (int)(rest / (uint)taken);
        place = place < 0 ? place + length : place;
        place = place < 0 ? 0 : place >= length ? length - 1 : place;
        target[index] = data[(outer * length + (int)place) * inner + i];
    }
}
