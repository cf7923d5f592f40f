sx_test(linear sx_backend linear_test.cc)
