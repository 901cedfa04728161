# Prints the three lines of the input that resemble `wanted` most, the nearest first: by the number of characters to insert, remove or
# replace until `wanted` is a part of the line, and then by the difference in length.

function least(a, b) { return a < b ? a : b }

function distance(part, whole,   i, j, before, here, best) {
    for (j = 0; j <= length(whole); j++) row[j] = 0
    for (i = 1; i <= length(part); i++) {
        before = row[0]
        row[0] = i
        for (j = 1; j <= length(whole); j++) {
            here = least(least(row[j], row[j - 1]) + 1, before + (substr(part, i, 1) != substr(whole, j, 1)))
            before = row[j]
            row[j] = here
        }
    }
    best = row[0]
    for (j = 1; j <= length(whole); j++) best = least(best, row[j])
    return best + (length(part) > length(whole) ? length(part) - length(whole) : length(whole) - length(part)) / 64
}

$0 != "" && !seen[$0]++ {
    far = distance(wanted, $0)
    at = 1
    while (at <= 3 && (at in name) && score[at] <= far) at++
    if (at > 3) next
    for (last = 3; last > at; last--) if ((last - 1) in name) {
        name[last] = name[last - 1]
        score[last] = score[last - 1]
    }
    name[at] = $0
    score[at] = far
}
END {
    for (at = 1; at <= 3 && (at in name); at++) printf "%s%s", (at > 1 ? ", " : ""), name[at]
    print ""
}
