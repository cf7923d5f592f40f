sx_test(choose "sx_backend" choose_test.cc)
