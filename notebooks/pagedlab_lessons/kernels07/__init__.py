"""The kernels of notebook 07.

    puzzles           seven of the eight puzzles
    ladder            the road to the kernel in eight rungs
    watch             watches the loads and stores of a kernel
    loads             pictures of what kernels load
    speeds            the measured speeds of the rungs
    without_triton    lets the notebook run to its end without Triton

Only ladder and watch import Triton.
"""
