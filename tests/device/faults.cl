/* Faults planted to be found. */

KERNEL void race(GLOBAL int *values)
{
    values[0] = LOCAL_ID(0);
}

KERNEL void overrun(GLOBAL int *values)
{
    values[LOCAL_ID(0)] = 1;
}
