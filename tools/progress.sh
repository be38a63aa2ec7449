# Sourced by tools/demo and tools/test: says how far a command is that writes a log.

# "3:07"
minutes_of() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# How far a log is: "done total", from the last count of ninja ("[12/345]"), ctest ("12/345 Test")
# or, of packages to fetch, unpack and set up, apt; nothing if it counts nothing.
count_in() {
  awk '
    function counted(text) { split(text, n, "/"); found = 1 }
    match($0, /\[[0-9]+\/[0-9]+\]/) { counted(substr($0, RSTART + 1, RLENGTH - 2)) }
    /^ *[0-9]+\/[0-9]+ Test / { counted($1) }
    match($0, /[0-9]+ newly installed/) { counted("0/" 3 * substr($0, RSTART)) }
    /^(Get:|Unpacking |Setting up )/ && n[2] { ++n[1] }
    END { if (found && n[1] > 0 && n[1] <= n[2]) print n[1], n[2] }' "$1" 2>/dev/null
}

# One line about log $1 of a command that began $2 seconds after this shell did.
progress_line() {
  local done_count total elapsed=$((SECONDS - $2))
  if read -r done_count total < <(count_in "$1"); then
    printf '%d of %d, about %s (min:s) left' "$done_count" "$total" \
      "$(minutes_of $((elapsed * (total - done_count) / done_count)))"
  else
    printf 'after %s (min:s): %s' "$(minutes_of "$elapsed")" \
      "$(tail -n 1 "$1" | tr -d '\r' | cut -c 1-100)"
  fi
}

# Until it is ended with TERM: a line about log $1 after 2 s, then every $2 s, with $3 before it.
show_progress() {
  local began=$SECONDS pause=2
  trap 'kill "$sleeper" 2>/dev/null; exit' TERM
  while true; do
    sleep "$pause" &
    sleeper=$!
    wait "$sleeper"
    pause=$2
    printf '%s%s\n' "$3" "$(progress_line "$1" "$began")"
  done
}

# Runs a command whose output goes to log $1, with lines of progress every $2 s after prefix $3.
run_with_progress() {
  local log=$1 status=0
  show_progress "$log" "$2" "$3" &
  local progress=$!
  "${@:4}" >"$log" 2>&1 </dev/null || status=$?
  kill "$progress" 2>/dev/null
  wait "$progress" 2>/dev/null || true
  return "$status"
}
