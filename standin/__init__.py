"""A tiny Kimi-K2.5 target and what it takes to serve it with the real engine on a CPU."""
