# cmake -DOUT=FILE -DFILES=a|b|c -P: a header with a hash of these files. Who exchanges objects of C++ classes with a library that is
# loaded at run time can tell by it that both were built with the same classes.
string(REPLACE "|" ";" FILES "${FILES}")
set(all "")
foreach(file ${FILES})
  file(SHA256 ${file} hash)
  string(APPEND all ${hash})
endforeach()
string(SHA256 hash "${all}")
string(SUBSTRING ${hash} 0 16 hash)
file(WRITE ${OUT}.new "#pragma once\n#define SX_BACKEND_INTERFACE \"${hash}\"\n")
file(COPY_FILE ${OUT}.new ${OUT} ONLY_IF_DIFFERENT)
