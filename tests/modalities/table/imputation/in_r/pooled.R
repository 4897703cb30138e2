# Pooled figures of completed tables by R's mice, mitml and survival: Rscript pooled.R tables.csv figures.json
suppressMessages({library(mice); library(mitml); library(survival)})
arguments <- commandArgs(TRUE)
long <- read.csv(arguments[1])
long$g <- factor(long$g)
long$sick <- factor(long$sick, levels = c("no", "yes"))
tables <- split(long, long$.imp)
fits <- function(analyse) as.mitml.result(lapply(tables, analyse))
tight <- glm.control(epsilon = 1e-14, maxit = 100)
ols <- fits(function(t) lm(y ~ x + g, t))
fewer <- fits(function(t) lm(y ~ x, t))
logit <- fits(function(t) glm(sick ~ x + g, binomial, t, control = tight))
less <- fits(function(t) glm(sick ~ x, binomial, t, control = tight))

cox <- fits(function(t) coxph(Surv(time, died) ~ x + g, t, control = coxph.control(eps = 1e-11)))
cox0 <- fits(function(t) coxph(Surv(time, died) ~ x, t, control = coxph.control(eps = 1e-11)))

# D3 of other than linear models: mitml has none, that of mice estimates the constant again at the pooled estimates.
of_logit <- function(models, pooled) sapply(models, function(fit) {
  eta <- as.vector(model.matrix(fit) %*% pooled)
  sum(plogis(ifelse(fit$y == 1, eta, -eta), log.p = TRUE))
})
of_cox <- function(models, pooled) sapply(tables, function(t) {
  coxph(formula(models[[1]]), t, init = pooled, control = coxph.control(iter.max = 0))$loglik[2]
})
d3 <- function(full, null, k, likelihood) {
  own <- 2 * mean(sapply(full, logLik) - sapply(null, logLik))
  pooled <- lapply(list(full, null), function(models) Reduce("+", lapply(models, coef)) / length(models))
  at_pooled <- 2 * mean(likelihood(full, pooled[[1]]) - likelihood(null, pooled[[2]]))
  m <- length(tables); t <- k * (m - 1)
  riv <- (m + 1) / t * (own - at_pooled)
  df <- 4 + (t - 4) * (1 + (1 - 2 / t) / riv)^2
  statistic <- at_pooled / (k * (1 + riv))
  c(statistic, k, df, pf(statistic, k, df, lower.tail = FALSE), riv)
}

by_rubin <- function(q, u, turn = identity) { # estimate, ends of the interval on the scale, turned back
  found <- pool.scalar(q, u, n = Inf, k = 1)
  half <- qt(.975, found$df) * sqrt(found$t)
  turn(c(found$qbar, found$qbar - half, found$qbar + half))
}
of_survfit <- function(what) {
  found <- lapply(tables, what)
  q <- -log(-log(sapply(found, `[[`, 1)))
  u <- (sapply(found, `[[`, 2) / abs(sapply(found, `[[`, 1) * log(sapply(found, `[[`, 1))))^2
  by_rubin(q, u, function(z) exp(-exp(-z)))
}
concordances <- lapply(tables, function(t) concordance(Surv(time, died) ~ x, t, reverse = TRUE))
c_index <- sapply(concordances, `[[`, "concordance")
c_error <- sqrt(sapply(concordances, `[[`, "var"))
slopes <- lapply(tables, function(t) coxph(Surv(time, died) ~ x, t, control = coxph.control(eps = 1e-11)))
r2 <- pool.r.squared(as.mira(unclass(ols)))
figures <- list(
  D1_ols = as.vector(testModels(ols, fewer, "D1", df.com = ols[[1]]$df.residual)$test),
  D2_ols = as.vector(testModels(ols, fewer, "D2")$test),
  D3_ols = as.vector(testModels(ols, fewer, "D3")$test),
  D1_logit = as.vector(testModels(logit, less, "D1", df.com = logit[[1]]$df.residual)$test),
  D3_logit = d3(logit, less, 2, of_logit),
  D1_cox = as.vector(testModels(cox, cox0, "D1", df.com = sum(tables[[1]]$died) - 3)$test),
  D3_cox = d3(cox, cox0, 2, of_cox),
  r_squared = r2[1, "est"],
  r_squared_fmi = r2[1, "fmi"],
  survival = of_survfit(function(t) with(summary(survfit(Surv(time, died) ~ 1, t[t$g == "b", ]), times = 5), c(surv, std.err))),
  incidence = of_survfit(function(t) {
    found <- summary(survfit(Surv(time, factor(cause)) ~ 1, t), times = 5)
    c(found$pstate[1, 2], found$std.err[1, 2])
  }),
  c_index = by_rubin(qlogis(c_index), (c_error / (c_index * (1 - c_index)))^2, plogis),
  slope = mean(sapply(slopes, coef))
)
written <- sapply(figures, function(x) paste0("[", paste(sprintf("%.12g", x), collapse = ", "), "]"))
writeLines(paste0("{\n", paste0(' "', names(written), '": ', written, collapse = ",\n"), "\n}"), arguments[2])
