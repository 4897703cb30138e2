# Multiple imputation by mice of a covariate below a limit, by a censored normal regression written for it, for
# benchmarks/tables_censored.py. Rscript tables_censored.R DESIGN LIMIT M IN.csv OUT.csv
suppressPackageStartupMessages({library(mice); library(survival)})
a <- commandArgs(TRUE); design <- a[1]; limit <- log(as.numeric(a[2])); m <- as.integer(a[3]); data <- read.csv(a[4])

mice.impute.tobit <- function(y, ry, x, wy = NULL, ...) {
  if (is.null(wy)) wy <- !ry
  x <- as.matrix(x)
  fit <- survreg(Surv(ifelse(ry, y, limit), ry, type = "left") ~ x, dist = "gaussian")
  drawn <- c(coef(fit), log(fit$scale)) + drop(t(chol(vcov(fit))) %*% rnorm(length(coef(fit)) + 1))
  sigma <- exp(drawn[length(drawn)])
  mean <- drop(cbind(1, x[wy, , drop = FALSE]) %*% drawn[-length(drawn)])
  p <- pnorm((limit - mean) / sigma)
  mean + sigma * qnorm(runif(length(mean)) * p)
}

rows <- list()
for (r in unique(data$rep)) {
  set.seed(r + 1)
  d <- data[data$rep == r, setdiff(names(data), "rep")]
  d$x <- log(d$c); d$c <- NULL
  time <- d$time
  if (design == "cox") d$time <- nelsonaalen(data.frame(time = d$time, event = d$event), time, event)
  imp <- mice(d, m = m, method = ifelse(names(d) == "x", "tobit", ""), maxit = 1, printFlag = FALSE)
  found <- lapply(seq_len(m), function(i) {
    one <- complete(imp, i)
    if (design == "cox") { one$time <- time; s <- summary(coxph(Surv(time, event) ~ x + z, one))$coefficients[, c(1, 3)] }
    else s <- summary(lm(y ~ x + z, one))$coefficients[, 1:2]
    rbind(s, c(mean(one$x), sd(one$x) / sqrt(nrow(one))))
  })
  k <- nrow(found[[1]])
  for (j in seq_len(k)) {
    p <- pool.scalar(sapply(found, function(s) s[j, 1]), sapply(found, function(s) s[j, 2])^2, n = nrow(d),
                     k = if (j == k) 1 else k - 1)
    rows[[length(rows) + 1]] <- data.frame(rep = r, estimate = p$qbar, error = sqrt(p$t), df = p$df, fmi = p$fmi)
  }
}
write.csv(do.call(rbind, rows), a[5], row.names = FALSE)
