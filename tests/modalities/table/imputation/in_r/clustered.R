# Analyses of clustered rows by R's lme4 and survival, and robust errors by hand: Rscript clustered.R table.csv figures.json
suppressMessages({library(lme4); library(survival)})
arguments <- commandArgs(TRUE)
t <- read.csv(arguments[1])
t$centre <- factor(t$centre)
tight <- lmerControl(optimizer = "bobyqa", optCtrl = list(rhoend = 1e-10))
intercept <- lmer(y ~ x + region + (1 | centre), t, control = tight)
slopes <- lmer(y ~ x + region + (1 + x | centre), t, control = tight)

# sandwich::vcovCL: of lm HC1 with G / (G - 1), of glm without (n - 1) / (n - k)
robust <- function(fit, bread, scores, cluster, factor) {
  summed <- rowsum(scores, cluster)
  g <- nrow(summed)
  sqrt(diag(bread %*% crossprod(summed) %*% bread) * g / (g - 1) * factor)
}
ols <- lm(y ~ x + region, t)
x <- model.matrix(ols)
ols_error <- robust(ols, solve(crossprod(x)), x * residuals(ols), t$centre, (nrow(x) - 1) / (nrow(x) - ncol(x)))
logit <- glm(ill ~ x + region, binomial, t, control = glm.control(epsilon = 1e-14))
logit_error <- robust(logit, vcov(logit), model.matrix(logit) * (logit$y - fitted(logit)), t$centre, 1)
counts <- glm(days ~ x + region, poisson, t, control = glm.control(epsilon = 1e-14))
counts_error <- robust(counts, vcov(counts), model.matrix(counts) * (counts$y - fitted(counts)), t$centre, 1)
cox <- coxph(Surv(days, ill) ~ x + region, t, cluster = centre, control = coxph.control(eps = 1e-12))
late <- coxph(Surv(start, days, ill) ~ x + region, t, cluster = centre, control = coxph.control(eps = 1e-12))
c_index <- concordance(Surv(days, ill) ~ x, t, reverse = TRUE, cluster = t$centre)
variances <- function(fit) { v <- as.data.frame(VarCorr(fit)); v$vcov[is.na(v$var2)] }
show <- function(b, se) list(estimate = unname(b), error = unname(se))
jsonlite_free <- function(x) {
  one <- function(v) paste0("[", paste(sprintf("%.12g", v), collapse = ", "), "]")
  parts <- sapply(names(x), function(n) {
    inner <- paste(sapply(names(x[[n]]), function(k) sprintf('"%s": %s', k, one(x[[n]][[k]]))), collapse = ", ")
    sprintf('  "%s": {%s}', n, inner)
  })
  paste0("{\n", paste(parts, collapse = ",\n"), "\n}")
}
of <- function(fit) sqrt(diag(as.matrix(vcov(fit))))
figures <- list(
  intercept = c(show(fixef(intercept), of(intercept)), list(variances = variances(intercept))),
  slopes = c(show(fixef(slopes), of(slopes)), list(variances = variances(slopes))),
  ols = show(coef(ols), ols_error), logit = show(coef(logit), logit_error),
  poisson = show(coef(counts), counts_error),
  cox = show(coef(cox), sqrt(diag(vcov(cox)))), late = show(coef(late), sqrt(diag(vcov(late)))),
  c_index = show(c_index$concordance, sqrt(c_index$var)))
writeLines(jsonlite_free(figures), arguments[2])
