"""Prefill on one replica and decode on another: who does which, and what each has to be told."""
