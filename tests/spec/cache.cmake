sx_test(cache_choice "sx_spec" cache_choice_test.cc cache_borders_test.cc)
sx_test(cache_allocation "sx_spec;sx_test_support" cache_allocation_test.cc)
sx_test(draft_cache "sx_spec;sx_test_support" draft_cache_test.cc draft_cache_choice_test.cc draft_cache_retrieve_test.cc)
