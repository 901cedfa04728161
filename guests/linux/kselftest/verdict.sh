# Shared by the workload of selftests and by the check of it (sourced, not run).

# verdict_of NAME LIMIT LINES ARGUMENT...: starts the test ./NAME ARGUMENT..., whose output goes to $output, for LIMIT seconds at most; prints one line with its verdict, its
# seconds and its last line, and the last LINES lines of one that neither passes nor is skipped. Each line has its end, whether the test's output ends in one or not. Sets
# `verdict`.
verdict_of() {
    name=$1 limit=$2 lines=$3
    shift 3
    begun=$(cut -d ' ' -f 1 /proc/uptime)
    # The shell's own message that the test was killed is not the test's.
    { timeout -s KILL "$limit" setsid sh -c 'echo $$ >"$1.group"; shift; exec "./$0" "$@"' "$name" "$output" "$@" </dev/null >"$output" 2>&1; } 2>/dev/null
    status=$?
    # What the test has started and left behind, above all if it was killed.
    kill -KILL "-$(cat "$output.group")" 2>/dev/null
    seconds=$(awk -v begun="$begun" '{ printf "%.2f", $1 - begun }' /proc/uptime)
    case $status in
    0) verdict=pass ;;
    4) verdict=skip ;;
    137) verdict=timeout ;;
    *) verdict=fail-$status ;;
    esac
    echo "tollgate: selftest $name: $verdict $seconds $(tr -d '\r' <"$output" | grep -v '^ *$' | tail -n 1 | cut -c 1-100)"
    case $verdict in
    pass | skip) ;;
    *) tail -n "$lines" "$output" | awk -v name="$name" '{ print name "| " $0 }' ;;
    esac
}
