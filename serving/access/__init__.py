"""Access control and limits for every request: keys, rates, sizes and slow clients."""
