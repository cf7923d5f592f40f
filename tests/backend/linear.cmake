sx_test(linear sx_backend linear_test.cc linear_extremes_test.cc linear_super_test.cc)
