"""Calls servers of the Open Inference Protocol v2: Triton, KServe, MLServer."""
