"""The same answers, sooner: what makes a step fast on its device.

engine            the class LLM: pagedlab's, with these parts
choose            which of them suit a model and its device
scheduler         prompt tokens a step, and slots ahead of the tokens
asked             which requests need the host
fused             a layer's weights in fewer kernels                              GPU
small_gemm        matrix products of a few rows, with the work around them        GPU
swiglu            silu(gate) * up of many rows, with the product before it        GPU
norm              RMSNorm                                                         GPU
runner            the loop with overlap: windows of steps ahead of the host       GPU
window            a window's rows                                                 GPU
decoder           launches a window on the device, and collects it                GPU
shapes            the shapes that steps are padded to                             GPU
buffers           what host and device exchange                                   GPU
device_step       one step: forward pass, sampling, next inputs; its CUDA graph   GPU
decode_state      the kernels between two steps                                   GPU
token_counts      the tokens of sequences with penalties                          GPU
sampling, kernels sampling, limits and penalties on the device                    GPU
cpu_linear        matrix products of a few tokens                                 CPU
"""

from pagedlab.threads import spin_little

spin_little()  # before torch is imported

from pagedlab_fast.engine import LLM  # noqa: E402

__all__ = ["LLM"]
