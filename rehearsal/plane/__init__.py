"""The emulated account: one moto, behind one lock, with what moto lacks replaced. See `rehearsal.region` for its use."""
