package early

const prlimit64 = 302
