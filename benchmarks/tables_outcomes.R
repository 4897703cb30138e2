# Multiple imputation by smcfcs and mice of simulated tables, for benchmarks/tables_outcomes.py.
# Rscript tables_outcomes.R DESIGN METHOD M IN.csv OUT.csv      IN: column `rep` and the table; OUT: rep, estimate, error, df, fmi
suppressPackageStartupMessages({library(mice); library(smcfcs); library(survival)})
a <- commandArgs(TRUE); design <- a[1]; method <- a[2]; m <- as.integer(a[3]); data <- read.csv(a[4]); out <- a[5]

analyse <- function(d) {
  if (design == "interaction") { s <- summary(lm(y ~ x + z + x:z, d))$coefficients; return(s[, 1:2]) }
  d$x <- as.numeric(as.character(d$x))
  if (design == "compet") return(do.call(rbind, lapply(1:2, function(k) {
    s <- summary(coxph(Surv(time, event == k) ~ x + z, d))$coefficients; s[, c(1, 3)]
  })))
  d$status <- factor(d$event, levels = 0:2)
  d$id <- seq_len(nrow(d))
  long <- finegray(Surv(time, status) ~ ., d, etype = "1")
  f <- coxph(Surv(fgstart, fgstop, fgstatus) ~ x + z, long, weights = fgwt, cluster = id)
  cbind(coef(f), sqrt(diag(vcov(f))))
}
censored_later <- function(d) { # of rows with the other cause, when they would have been censored
  lost <- survfit(Surv(time, event == 0) ~ 1, d)
  at <- lost$time[lost$n.event > 0]; curve <- lost$surv[lost$n.event > 0]
  d$until <- d$time
  for (i in which(d$event == 2)) {
    now <- c(1, curve)[findInterval(d$time[i], at) + 1]
    d$until[i] <- c(at, max(d$time))[which(c(curve, 0) <= runif(1) * now)[1]]
  }
  d$own <- as.integer(d$event == 1)
  d
}
complete_tables <- function(d) {
  if (method == "smcfcs") {
    if (design == "interaction") {
      d$xz <- NULL
      return(smcfcs(d, "lm", "y ~ x + z + x:z", method = c("norm", "", ""), m = m, numit = 10)$impDatasets)
    }
    if (design == "compet") {
      forms <- c("Surv(time, event == 1) ~ x + z", "Surv(time, event == 2) ~ x + z")
      return(smcfcs(d, "compet", forms, method = c("logreg", "", "", ""), m = m, numit = 10)$impDatasets)
    }
    return(lapply(seq_len(m), function(i) {
      one <- censored_later(d)[, c("x", "z", "until", "own")]
      done <- smcfcs(one, "coxph", "Surv(until, own) ~ x + z", method = c("logreg", "", "", ""), m = 1, numit = 10)$impDatasets[[1]]
      cbind(done[, c("x", "z")], d[, c("time", "event")])
    }))
  }
  if (design == "interaction") { # x z as just another variable
    d$xz <- d$x * d$z
    imp <- mice(d, m = m, method = c("norm", "", "", "norm"), maxit = 10, printFlag = FALSE)
    return(lapply(seq_len(m), function(i) { one <- complete(imp, i); names(one)[4] <- "own"; one }))
  }
  d$x <- factor(d$x); d$event <- factor(d$event)
  imp <- mice(d, m = m, maxit = 1, printFlag = FALSE)
  lapply(seq_len(m), function(i) { one <- complete(imp, i); one$event <- as.numeric(as.character(one$event)); one })
}
rows <- list()
for (r in unique(data$rep)) {
  set.seed(r + 1)
  d <- data[data$rep == r, setdiff(names(data), "rep")]
  sink(nullfile()); tables <- suppressWarnings(complete_tables(d)); sink()
  found <- lapply(tables, function(one) {
    if (design == "interaction" && method == "naive") { # the product that was imputed, as it was analysed
      s <- summary(lm(y ~ x + z + own, one))$coefficients; return(s[, 1:2])
    }
    analyse(one)
  })
  for (k in seq_len(nrow(found[[1]]))) {
    p <- pool.scalar(sapply(found, function(s) s[k, 1]), sapply(found, function(s) s[k, 2])^2, n = nrow(d), k = nrow(found[[1]]))
    rows[[length(rows) + 1]] <- data.frame(rep = r, estimate = p$qbar, error = sqrt(p$t), df = p$df, fmi = p$fmi)
  }
}
write.csv(do.call(rbind, rows), out, row.names = FALSE)
