"""The parts of ``kvlb fake-engine``: a vLLM server without a model, in real time."""
