sx_test(rows sx_backend rows_test.cc)
