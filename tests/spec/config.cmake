sx_test(spec_config "sx_spec" config_test.cc config_json_test.cc config_cache_test.cc config_inner_test.cc)
