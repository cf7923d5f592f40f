sx_test(accept_rules "sx_spec" accept_rules_test.cc)
sx_test(accept_match "sx_spec" accept_match_test.cc)
sx_test(accept_allocation "sx_spec;sx_test_support" accept_allocation_test.cc)
