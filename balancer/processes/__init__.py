"""kvlb as several processes: one brain that decides, gateways that serve, and a supervisor that keeps them."""
