# The table of verdicts of a guest's selftests, from what its console said (see verdict.sh). Fails if no test was started.

/^tollgate: selftest / {
    name = $3; sub(/:$/, "", name)
    said = $0; sub(/^tollgate: selftest [^ ]* [^ ]* [^ ]* ?/, "", said)
    row[++n] = name; verdict[n] = $4; seconds[n] = $5; last[n] = ($4 == "pass" ? "" : said)
    if (length(name) > width) width = length(name)
    kind = $4; sub(/-.*/, "", kind); total[kind]++
}
END {
    if (!n) exit 1
    printf "%-" width "s  %-9s %9s  %s\n", "test", "verdict", "s", "last line"
    for (i = 1; i <= n; i++) { text = sprintf("%-" width "s  %-9s %9s  %s", row[i], verdict[i], seconds[i], last[i]); sub(/ +$/, "", text); print text }
    text = n " tests:"
    split("pass fail skip timeout", order, " ")
    for (i = 1; i <= 4; i++) if (total[order[i]]) text = text " " total[order[i]] " " order[i]
    print text
}
