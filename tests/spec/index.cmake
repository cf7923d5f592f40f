sx_test(suffix_automaton "sx_spec" suffix_automaton_test.cc)
sx_test(calibration "sx_spec" calibration_test.cc)
sx_test(drafter_index "sx_spec;sx_test_support" drafter_index_test.cc)
sx_test(drafter_fuse "sx_spec;sx_test_support" drafter_fuse_test.cc)
