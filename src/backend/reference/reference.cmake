# The naive backend that every other one is tested against.
target_sources(sx_backend PRIVATE reference/reference_backend.cc)
