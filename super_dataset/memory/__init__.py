"""Memory of batches: recycled, shared and pinned, and the transfer to a device."""
