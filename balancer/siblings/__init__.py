"""Other gateways before the same replicas: what they have under way there, and their index for who is new."""
