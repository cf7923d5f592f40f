sx_test(chi_square "sx_spec" chi_square_test.cc)
