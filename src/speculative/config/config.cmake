# Presets, settings by name, vLLM's configuration.
target_sources(sx_speculative PRIVATE ${CMAKE_CURRENT_LIST_DIR}/config.cc ${CMAKE_CURRENT_LIST_DIR}/settings.cc
  ${CMAKE_CURRENT_LIST_DIR}/config_json.cc ${CMAKE_CURRENT_LIST_DIR}/medusa_paths.cc)
