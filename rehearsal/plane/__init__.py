"""The emulated account: one moto behind one lock, with what it lacks replaced. `rehearsal.region` puts it together."""
