"""Does `pollux.torch` do on this machine what it promises?

    python -m pollux.torch.selftest

Real trainings of tiny models, on the GPUs of this machine if it has any, with NCCL if it has several, otherwise on its
processors with gloo. They are compared with plain PyTorch and with brute force, resized, killed and starved of memory.
Takes up to two minutes, uses the network of this machine only, and leaves nothing behind.
"""
