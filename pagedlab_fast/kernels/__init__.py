"""Triton kernels that sample: penalties, limits of the candidates, and the draw."""
