# Sourced by tools/demo and tools/test.

# CMake configures no build tree that another source tree made: one that came along when a checkout
# was moved or copied is forgotten, and made anew from what compilers' caches know.
forget_moved_trees() {
  local cache tree home
  for cache in build/*/CMakeCache.txt; do
    tree=${cache%/*}
    home=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$cache" 2>/dev/null) || continue
    [ -n "$home" ] && [ ! "$home" -ef . ] || continue
    echo "$tree was made in $home, which is not this checkout: it is built anew"
    rm -rf "$tree/CMakeFiles" "$cache"
  done
}
