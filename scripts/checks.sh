# Shared by the scripts that check others (sourced, not run): --help, a directory $work that goes with the script, and comparisons whose failures set $failed.

. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case ${1:-} in -h | --help)
    usage
    exit 0
    ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# same NAME EXPECTED FOUND
same() {
    if [ "$2" = "$3" ]; then
        echo "ok    $1"
    else
        printf 'FAIL  %s\n  expected: %s\n  found:    %s\n' "$1" "$2" "$3"
        failed=1
    fi
}
