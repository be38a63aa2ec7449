# Writes units, tmpfiles and sysusers as they are for a prefix: at configuration into the build, and
# again by `cmake --install`, whose --prefix may be another.

# Where the configuration of what is installed under `prefix` lies.
function(terrace_config_dir prefix result)
  if(prefix MATCHES "^/usr(/local)?/?$")
    set(${result} /etc/terrace PARENT_SCOPE)
  elseif(prefix MATCHES "^/opt/")
    set(${result} /etc${prefix}/terrace PARENT_SCOPE)
  else()
    set(${result} ${prefix}/etc/terrace PARENT_SCOPE)
  endif()
endfunction()

# REQUIRES: bindir, relative to the prefix or absolute.
function(terrace_write_units sources prefix bindir output)
  terrace_config_dir(${prefix} TERRACE_CONFIG_DIR)
  cmake_path(ABSOLUTE_PATH bindir BASE_DIRECTORY ${prefix} OUTPUT_VARIABLE TERRACE_BIN_DIR)
  foreach(name terraced.service terraced.tmpfiles)
    configure_file(${sources}/${name}.in ${output}/${name} @ONLY)
  endforeach()
  foreach(name terraced.socket terraced-metrics.socket terraced.sysusers)
    configure_file(${sources}/${name} ${output}/${name} COPYONLY)
  endforeach()
endfunction()
