# Has `terrace` write what makes shells complete it: ${output}/bash, zsh and fish.
file(MAKE_DIRECTORY ${output})
foreach(shell bash zsh fish)
  execute_process(COMMAND ${terrace} completions ${shell} OUTPUT_FILE ${output}/${shell}
                  COMMAND_ERROR_IS_FATAL ANY)
endforeach()
