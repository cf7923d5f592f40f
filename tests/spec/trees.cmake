sx_test(trees "sx_spec" tree_test.cc tree_sequoia_test.cc tree_static_test.cc tree_policy_test.cc tree_opt_test.cc)
sx_test(tree_allocation "sx_spec;sx_test_support" tree_allocation_test.cc)
sx_test(tree_grammar "sx_spec" tree_grammar_test.cc)
