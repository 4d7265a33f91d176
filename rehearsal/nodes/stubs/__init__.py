"""Commands of the machine image, played on one machine: `docker`, `aws` and `curl` as far as user data uses them.

Each is a module with a `main(argv) -> int`. What a stub does not know it refuses with exit status 64 and its name, so
that a change of the user data shows in the rehearsal instead of being ignored.
"""
