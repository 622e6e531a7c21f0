"""A vLLM replica without a GPU: the model of one engine, in simulated or in real time."""
