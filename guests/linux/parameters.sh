# Shared by workloads (sourced, not run): the parameters on the kernel command line, tollgate.NAME=VALUE, or tollgate.NAME-base64=VALUE for
# values of any bytes. (Linux itself knows only quotation marks around a value, and no way to have one within it.)

fail() {
    echo "tollgate: $*"
    exit 1
}

# The words of the kernel command line, one a line; quotes keep spaces together and are dropped. A parameter of ours is refused if Linux
# would cut it: quotes begin before the word or its value, and end behind it. (The first process has read tollgate.run= itself.)
words=$(awk '
    function word_ends(   name) {
        name = word
        sub(/=.*/, "", name)
        if (misplaced && name ~ /^tollgate\./ && name != "tollgate.run") {
            print "tollgate: " name "=: a value cannot have quotation marks within it: give it as " name "-base64=, encoded by: base64 -w 0" | "cat >&2"
            refused = 1
        }
        print word
        word = ""
        misplaced = 0
    }
    {
        for (i = 1; i <= length($0); i++) {
            c = substr($0, i, 1)
            after = substr($0, i + 1, 1)
            if (c == "\"") {
                if (quoted ? after != "" && after != " " : word !~ /^([^=]*=)?$/) misplaced = 1
                quoted = !quoted
            } else if (c == " " && !quoted) word_ends()
            else word = word c
        }
        if (quoted) misplaced = 1
        word_ends()
    }
    END { exit refused }
' "${command_line:=/proc/cmdline}") || exit 1

# raw NAME: the value of the last word NAME=VALUE.
raw() { printf '%s\n' "$words" | sed -n "s/^$1=//p" | tail -n 1; }

printf '%s\n' "$words" | sed -n 's/^\(tollgate\.[^=]*-base64\)=.*/\1/p' | while read -r name; do
    raw "$name" | grep -Eqx '[A-Za-z0-9+/]*={0,2}' || fail "$name= is not base64"
done || exit 1

# parameter NAME DEFAULT: what the kernel command line has for tollgate.NAME=.
parameter() {
    found=$(raw "tollgate\.$1-base64")
    if [ -n "$found" ]; then
        printf %s "$found" | base64 -d
        return
    fi
    found=$(raw "tollgate\.$1")
    printf '%s\n' "${found:-$2}"
}

# as_parameter NAME OTHER DEFAULT: the value of tollgate.OTHER= as the parameter tollgate.NAME= of a kernel inside, byte for byte.
as_parameter() {
    found=$(raw "tollgate\.$2-base64")
    if [ -n "$found" ]; then
        echo "tollgate.$1-base64=$found"
    else
        echo "tollgate.$1=\"$(parameter "$2" "$3")\""
    fi
}

# whole_command_line TEXT: succeeds if a kernel does not cut it: x86 has room for 2047 bytes.
whole_command_line() { [ "$(printf %s "$1" | wc -c)" -le 2047 ]; }

# choose_tests FILE: sets `only` to the tests that tollgate.tests= names, separated by commas or spaces, as ",A,B,", or to nothing if it names none.
# Each must be in the file, which has a name a line; without one, with those that resemble it, the workload ends.
choose_tests() {
    only=
    set -f
    for test in $(parameter tests '' | tr ',' ' '); do
        grep -Fqx -- "$test" "$1" || fail "no test is called $test; nearest: $(awk -v wanted="$test" -f /lib/nearest.awk "$1")"
        only=${only:-,}$test,
    done
    set +f
}
